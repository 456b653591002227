"""Replication: leaders maintain the ISR and the high watermark, followers fetch from the leaders."""
