"""Certificates for tests, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def certificate(folder: Path, name: str, *options: str, password: str = "") -> tuple[Path, Path]:
    """Make a key and a certificate that signs itself, by `openssl req`; returns the certificate and both in one PEM.

    With a password the key there is encrypted, by what Java 17 can decrypt.
    """
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificates, and is not installed")
    key, signed, both = (folder / f"{name}{end}" for end in ("-key.pem", ".pem", "-store.pem"))
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}", *options,
         "-keyout", str(key), "-out", str(signed)],
        check=True, capture_output=True,
    )  # fmt: skip
    if password:
        subprocess.run(
            ["openssl", "pkcs8", "-topk8", "-v1", "PBE-SHA1-3DES", "-in", str(key), "-passout", f"pass:{password}",
             "-out", str(encrypted := key.with_suffix(".encrypted"))],
            check=True, capture_output=True,
        )  # fmt: skip
        key = encrypted
    both.write_text(key.read_text() + signed.read_text())
    return signed, both
