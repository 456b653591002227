"""`rehome storage`: ids, formatting and looking at log directories, on real folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ops.cli import main as cli
from storage_node.directories.formatting import prepare
from storage_node.directories.meta import properties as meta_properties

CLUSTER = "5MJQ_nGJQHGp6zHzbJCZhg"


class Folders:
    """A configuration over three directories below a test's folder, and the command on it."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self.dirs = [root / name for name in ("d1", "d2", "d3")]
        self.config = root / "server.properties"
        self.write()
        self._capsys = capsys

    def write(self, **more: str) -> None:
        values = {"node.id": "1", "log.dirs": ",".join(map(str, self.dirs)), **more}
        self.config.write_text("".join(f"{key.replace('_', '.')}={value}\n" for key, value in values.items()))

    def run(self, command: str, *arguments: str) -> tuple[int, list[str], str]:
        """Exit code, lines of standard output, standard error."""
        code = cli.run(["storage", command, "-c", str(self.config), *arguments])
        shown = self._capsys.readouterr()
        assert "Traceback" not in shown.err
        return code, shown.out.splitlines(), shown.err.strip()

    def files(self) -> list[bytes | None]:
        found = [path / "meta.properties" for path in self.dirs]
        return [file.read_bytes() if file.exists() else None for file in found]


@pytest.fixture
def folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Folders:
    return Folders(tmp_path, capsys)


@pytest.mark.conformance(110, 128)
def test_random_uuid_is_valid_and_not_reserved(capsys: pytest.CaptureFixture[str]) -> None:
    drawn = set()
    for _ in range(20):
        assert cli.run(["storage", "random-uuid"]) == 0
        (id,) = capsys.readouterr().out.splitlines()
        assert meta_properties.is_directory_id(id)
        assert not id.startswith("-") and not meta_properties.is_reserved(id)
        drawn.add(id)
    assert len(drawn) == 20
    assert cli.run(["storage", "random-uuid", "--json"]) == 0
    assert meta_properties.is_directory_id(json.loads(capsys.readouterr().out)["uuid"])


@pytest.mark.conformance(132, 139)
@pytest.mark.feature("858-01", "858-05")
def test_format_prints_the_formatted_directories(folders: Folders) -> None:
    d1, d2, d3 = folders.dirs
    assert folders.run("format", "-t", CLUSTER) == (
        0,
        [
            f"Formatting metadata directory {d1} with metadata.version 4.3-IV0.",
            f"Formatting data directory {d2} with metadata.version 4.3-IV0.",
            f"Formatting data directory {d3} with metadata.version 4.3-IV0.",
        ],
        "",
    )
    found = [meta_properties.read(path) for path in folders.dirs]
    assert {(each.version, each.cluster_id, each.node_id) for each in found if each} == {(2, CLUSTER, 1)}
    ids = {each.directory_id for each in found if each}
    assert len(ids) == 3 and all(set(each.directory_ids) == ids for each in found if each)


@pytest.mark.conformance(133, 134, 135)
@pytest.mark.feature("858-02")
def test_formatted_directories_are_rejected_or_ignored(folders: Folders) -> None:
    folders.dirs = folders.dirs[:2]
    folders.write()
    assert folders.run("format", "-t", CLUSTER)[0] == 0
    folders.dirs.append(folders.root / "a")
    folders.write()
    before = folders.files()
    code, out, err = folders.run("format", "-t", CLUSTER)
    assert (code, out) == (1, [])
    assert err == (
        f"error: Log directory {folders.dirs[0]} is already formatted. "
        f"Use --ignore-formatted to ignore this directory and format the others."
    )
    assert folders.files() == before and not folders.dirs[2].exists()
    code, out, _ = folders.run("format", "-t", CLUSTER, "-g", "-r", "4.1")
    assert code == 0 and out[0] == f"Formatting data directory {folders.dirs[2]} with metadata.version 4.1-IV1."
    assert [line.split()[1] for line in out[1:]] == [f"{path}/meta.properties" for path in folders.dirs[:2]]
    before = folders.files()
    assert folders.run("format", "-t", CLUSTER, "--ignore-formatted") == (
        0,
        ["All of the log directories are already formatted."],
        "",
    )
    assert folders.files() == before


@pytest.mark.feature("858-03")
@pytest.mark.conformance(137, 138)
def test_format_fails_if_a_directory_is_unusable(folders: Folders) -> None:
    folders.dirs[1].write_text("a file")
    code, out, err = folders.run("format", "-t", CLUSTER)
    assert (code, out) == (1, [])
    assert f"{folders.dirs[1]}: I/O error trying to read log directory {folders.dirs[1]}" in err
    assert not folders.dirs[0].exists() and not folders.dirs[2].exists()
    folders.dirs = [folders.dirs[1]]
    folders.write()
    code, _, err = folders.run("format", "-t", CLUSTER)
    assert code == 1 and "No available log directories to format" in err


@pytest.mark.conformance(125)
def test_directories_of_another_cluster_or_node_are_rejected(folders: Folders) -> None:
    assert folders.run("format", "-t", CLUSTER)[0] == 0
    before = folders.files()
    code, out, err = folders.run("format", "-t", "another", "-g")
    assert (code, out) == (1, [])
    for path in folders.dirs:
        assert f"Invalid cluster.id in: {path}/meta.properties. Expected another, but read {CLUSTER}" in err
    folders.write(node_id="2")
    folders.config.write_text(folders.config.read_text().replace("node.id=1\n", ""))
    code, out, err = folders.run("format", "-t", CLUSTER, "-g")
    assert (code, out) == (1, []) and err.count("Stored node id 1 doesn't match previous node id 2 in ") == 3
    assert folders.files() == before


def test_running_node_is_left_alone(folders: Folders) -> None:
    assert folders.run("format", "-t", CLUSTER)[0] == 0
    prepared = prepare(folders.dirs, node_id=1)
    try:
        code, _, err = folders.run("format", "-t", CLUSTER, "-g", "--meta-version", "1")
        assert code == 1 and "is in use by process" in err
        assert folders.run("info")[0] == 0
    finally:
        for lock in prepared.locks.values():
            lock.release()


def test_cluster_id_is_read_from_the_file(folders: Folders) -> None:
    code, _, err = folders.run("format")
    assert code == 2 and "--cluster-id ID" in err and "random-uuid" in err
    folders.write(cluster_id=CLUSTER)
    code, _, err = folders.run("format", "-t", "another")
    assert code == 1 and f"--cluster-id is another, but {folders.config} has cluster.id={CLUSTER}" in err
    assert folders.run("format")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["-S", "SCRAM-SHA-256=[name=a,password=b]"], 1, "does not authenticate clients"),
        (["-f", "group.version=1"], 1, "Unsupported feature: group.version"),
        (["-r", "1.0"], 1, "Unknown metadata.version '1.0'"),
        (["-s", "-N"], 2, "--no-initial-controllers is not allowed with --standalone"),
        (["--meta-version", "3"], 2, "'--meta-version'"),
        (["--meta-version", "0"], 2, "'--meta-version'"),
    ],
)
def test_rejected_options_change_nothing(folders: Folders, arguments: list[str], code: int, says: str) -> None:
    exit_code, out, err = folders.run("format", "-t", CLUSTER, *arguments)
    assert (exit_code, out) == (code, []) and says in err
    assert not folders.dirs[0].exists()


@pytest.mark.parametrize("option", [["-s"], ["-N"], ["-I", "1@h:9093:JEXY6aqzQY-32P5TStzaFg"]])
def test_quorum_options_have_no_effect(folders: Folders, option: list[str]) -> None:
    code, out, err = folders.run("format", "-t", CLUSTER, *option)
    assert code == 0 and len(out) == 3
    assert "has no effect" in err and "Cluster workflow" in err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("node.id=1\n", "log.dirs is missing"),
        ("log.dirs=/a\n", "node.id is missing"),
        ("node.id=x\nlog.dirs=/a\n", "node.id=x"),
    ],
)
def test_format_with_an_incomplete_file_fails(folders: Folders, text: str, says: str) -> None:
    folders.config.write_text(text)
    code, out, err = folders.run("format", "-t", CLUSTER)
    assert (code, out) == (1, []) and says in err


def test_format_as_json_lists_the_directories(folders: Folders) -> None:
    folders.write(metadata_log_dir=str(folders.root / "m"))
    code, out, _ = folders.run("format", "-t", CLUSTER, "--json")
    shown = json.loads("\n".join(out))
    rows = shown.pop("directories")
    assert code == 0
    assert shown == {"cluster_id": CLUSTER, "node_id": 1, "meta_version": 2, "metadata_version": "4.3-IV0"}
    assert [(row["path"], row["kind"], row["state"]) for row in rows] == [
        *((str(path), "data", "formatted") for path in folders.dirs),
        (str(folders.root / "m"), "metadata", "formatted"),
    ]
    code, out, _ = folders.run("format", "-t", CLUSTER, "-g", "--meta-version", "1", "--json")
    shown = json.loads("\n".join(out))
    assert {row["state"] for row in shown["directories"]} == {"rewritten"} and shown["meta_version"] == 1
    code, out, _ = folders.run("info", "--json")
    shown = json.loads("\n".join(out))
    assert code == 0 and shown["problems"] == [] and shown["metadata"]["version"] == "1"
    assert shown["directories"] == [str(path) for path in (*folders.dirs, folders.root / "m")]
    folders.config.write_text("node.id=1\n")
    code, out, _ = folders.run("info", "--json")
    assert code == 0 and json.loads("\n".join(out)) == {"directories": [], "metadata": None, "problems": []}


@pytest.mark.conformance(140)
def test_info_before_and_after_a_format(folders: Folders) -> None:
    folders.dirs[1].mkdir()
    folders.dirs[2].write_text("a file")
    d1, d2, d3 = folders.dirs
    assert folders.run("info") == (
        1,
        [
            *("Found log directory:", f"  {d2}", "", "Found problems:"),
            *(f"  {d1} does not exist", f"  {d2} is not formatted.", f"  {d3} is not a directory", ""),
        ],
        "",
    )
    d3.unlink()
    assert folders.run("format", "-t", CLUSTER)[0] == 0
    first = meta_properties.read(d1)
    assert first is not None
    ids = ",".join(first.directory_ids)
    properties = f"cluster.id={CLUSTER}, directory.id={first.directory_id}, directory.ids={ids}, node.id=1, version=2"
    assert folders.run("info") == (
        0,
        [*("Found log directories:", f"  {d1}", f"  {d2}", f"  {d3}", ""), f"Found metadata: {{{properties}}}", ""],
        "",
    )
    (d2 / "meta.properties").unlink()
    code, out, _ = folders.run("info")
    assert code == 1 and f"  {d2} is not formatted." in out and any("but no directory has it" in x for x in out)


def test_info_without_directories(folders: Folders) -> None:
    folders.config.write_text("node.id=1\n")
    assert folders.run("info") == (0, ["No directories specified."], "")
    folders.config.unlink()
    code, out, err = folders.run("info")
    assert (code, out) == (1, []) and f"{folders.config} cannot be read: No such file" in err
