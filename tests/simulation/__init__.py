"""Simulated disks and time, and the suites that run the real log and move code on them.

* `disks`: what one disk holds, and what a crash may leave of it (values; no patching).
* `machine`: the disks of one machine under `/sim/<name>`, and the system calls on them.
* `patching`: `simulated(machine)` turns `os`, `io.open`, `fcntl.flock` and `time` to the machine.
"""
