"""Named points at which a process dies, fails, waits or hangs when a test says so."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from storage_node import failpoints
from storage_node.failpoints import failpoint

ONE = failpoints.register("test.one")
TWO = failpoints.register("test.two")

PROGRAM = """
from storage_node import failpoints
one = failpoints.register("test.one")
for number in range(3):
    failpoints.failpoint(one)
    print(number, flush=True)
"""


def run(points: str, flags: Path | None = None) -> subprocess.CompletedProcess[str]:
    environ = dict(os.environ, REHOME_FAILPOINTS=points, **({"REHOME_FAILPOINTS_FLAGS": str(flags)} if flags else {}))
    return subprocess.run([sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, timeout=60)


def test_point_that_is_not_armed_does_nothing() -> None:
    failpoint(ONE)
    with failpoints.active({TWO: "raise"}):
        failpoint(ONE)


def test_raise_is_an_io_error_and_ends_with_the_block() -> None:
    with failpoints.active({ONE: "raise", TWO: "raise:ENOSPC"}):
        with pytest.raises(OSError, match=r"test\.one") as first:
            failpoint(ONE)
        with pytest.raises(OSError) as second:
            failpoint(TWO)
    failpoint(ONE)
    assert (first.value.errno, second.value.errno) == (errno.EIO, errno.ENOSPC)


def test_action_can_wait_for_the_nth_pass() -> None:
    with failpoints.active({ONE: "raise@3"}) as armed:
        failpoint(ONE)
        failpoint(ONE)
        with pytest.raises(OSError):
            failpoint(ONE)
        assert armed.hits(ONE) == 3


def test_callable_runs_in_the_thread_that_passes() -> None:
    seen: list[int] = []
    with failpoints.active({ONE: lambda: seen.append(threading.get_ident())}):
        failpoint(ONE)
    assert seen == [threading.get_ident()]


def test_sleep_lasts_as_long_as_said() -> None:
    with failpoints.active({ONE: "sleep=0.05"}):
        before = time.monotonic()
        failpoint(ONE)
    assert time.monotonic() - before >= 0.05


def test_hanging_thread_continues_when_the_point_is_disarmed() -> None:
    passed = threading.Event()

    def work() -> None:
        failpoint(ONE)
        passed.set()

    with failpoints.active({ONE: "hang"}) as armed:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        assert armed.wait_hit(ONE)
        assert not passed.is_set()
    assert passed.wait(30)
    thread.join(30)


def test_flag_files_make_an_action_happen_once(tmp_path: Path) -> None:
    for expected in (True, False):
        with failpoints.active({ONE: "raise"}, flags=tmp_path):
            if expected:
                with pytest.raises(OSError):
                    failpoint(ONE)
            else:
                failpoint(ONE)


def test_names_are_checked() -> None:
    with pytest.raises(ValueError, match=r"no such failpoints: test\.tow"), failpoints.active({"test.tow": "kill"}):
        pass
    with pytest.raises(ValueError):
        failpoints.register("Not A Name")
    with failpoints.active({ONE: "raise"}), pytest.raises(ValueError, match="never registered"):
        failpoint("test.never")
    assert {ONE, TWO} <= set(failpoints.registered("test."))


@pytest.mark.parametrize("text", ["kil", "sleep", "sleep=-1", "sleep=nan", "raise:EWHAT", "kill@0", "kill@x", ""])
def test_bad_action_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="failpoint's action"):
        failpoints.parse_action(text)


def test_entries_are_separated_by_commas_semicolons_or_lines() -> None:
    parsed = failpoints.parse("a.b=kill, c.d=sleep=0.5;\n# a remark\ne.f=raise:ENOSPC@2\n")
    assert [(name, action.kind) for name, action in parsed.items()] == [
        ("a.b", "kill"),
        ("c.d", "sleep"),
        ("e.f", "raise"),
    ]
    assert (parsed["e.f"].error, parsed["e.f"].after) == (errno.ENOSPC, 2)
    with pytest.raises(ValueError, match="name=action"):
        failpoints.parse("just-a-name")


def test_whole_process_is_killed_by_its_environment() -> None:
    done = run("test.one=kill@2")
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "0\n")


def test_restarted_process_does_not_die_again(tmp_path: Path) -> None:
    flags = tmp_path / "flags"
    assert run("test.one=kill", flags).returncode == -signal.SIGKILL
    again = run("test.one=kill", flags)
    assert (again.returncode, again.stdout) == (0, "0\n1\n2\n")


def test_bad_environment_stops_the_process_with_the_entry() -> None:
    done = run("test.one")
    assert done.returncode != 0 and "name=action" in done.stderr


def test_file_arms_and_disarms_a_running_process(tmp_path: Path) -> None:
    points = tmp_path / "points"
    points.write_text("test.one=hang\n")
    environ = dict(os.environ, REHOME_FAILPOINTS=f"@{points}")
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], env=environ, stdout=subprocess.PIPE, text=True)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        points.write_text("")
        out, _ = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, "0\n1\n2\n")
    finally:
        process.kill()
        process.wait()


def test_undeclared_names_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "_armed", ())
    failpoints.configure({"REHOME_FAILPOINTS": "test.one=kill,test.misspelt=kill"})
    assert failpoints.unknown() == ("test.misspelt",)
