"""kafka-storage and `rehome storage` on the same folders: the same lines, the same files, the same exit codes."""

from __future__ import annotations

import os
import re
from pathlib import Path

import javaproperties
import pytest

from ops.cli import main as cli
from ops.kafka.tools import WarmTools
from storage_node.directories.meta import properties as meta_properties
from tests.conformance.clusters import APACHE, KINDS
from tests.conformance.differences import DIFFERENCES

CLUSTER = "5MJQ_nGJQHGp6zHzbJCZhg"
#: Lines that only one of the two prints, and that say nothing about the folders.
NOISE = ("SLF4J", "Bootstrap metadata: ", "Writing ")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "storage" in metafunc.fixturenames:
        kinds = [kind for kind in KINDS if kind in metafunc.config.getoption("--kinds").split(",")]
        metafunc.parametrize("storage", kinds, indirect=True)


class Storage:
    """One kind's command, with a configuration that both kinds read."""

    def __init__(self, kind: str, root: Path, capsys: pytest.CaptureFixture[str], warm: WarmTools | None) -> None:
        self.kind = kind
        self.root = root
        self._capsys = capsys
        self._warm = warm

    def differs(self, id_: str) -> bool:
        """Whether this kind is the one that differs on purpose."""
        assert id_ in DIFFERENCES
        return self.kind != APACHE

    def config(self, *dirs: Path | str, metadata: Path | str = "", node: int = 1) -> str:
        """A server.properties over these directories."""
        file = self.root / "server.properties"
        values = {
            "process.roles": "broker,controller",
            "node.id": str(node),
            "controller.quorum.voters": f"{node}@127.0.0.1:19093",
            "listeners": "PLAINTEXT://127.0.0.1:19092,CONTROLLER://127.0.0.1:19093",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": ",".join(map(str, dirs)),
            **({"metadata.log.dir": str(metadata)} if metadata else {}),
        }
        file.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        return str(file)

    def run(self, *arguments: str) -> tuple[int, list[str], str]:
        """Exit code, the lines of standard output, and standard error."""
        if self._warm is not None:
            code, out, err = self._warm.run("kafka-storage", *arguments)
        else:
            self._capsys.readouterr()
            code = cli.run(["storage", *arguments])
            out, err = self._capsys.readouterr()
        return code, [line for line in out.splitlines() if not line.startswith(NOISE)], err

    def format(self, config: str, *more: str, cluster: str = CLUSTER) -> tuple[int, list[str], str]:
        """Format; the lines sorted, since Kafka's order is that of a hash table."""
        code, out, err = self.run("format", "-t", cluster, "-c", config, *more)
        return code, sorted(out), err


@pytest.fixture
def storage(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Storage:
    warm = request.getfixturevalue("warm_tools") if request.param == APACHE else None
    return Storage(request.param, tmp_path, capsys, warm)


def values(directory: Path) -> dict[str, str]:
    """A directory's meta.properties as it stands on disk."""
    return dict(javaproperties.loads((directory / "meta.properties").read_text()))


def three(root: Path) -> list[Path]:
    return [root / name for name in ("d1", "d2", "d3")]


@pytest.mark.conformance(110, 128)
def test_random_uuid(storage: Storage) -> None:
    for _ in range(5):
        code, (id_,), _ = storage.run("random-uuid")
        assert code == 0 and meta_properties.is_directory_id(id_)
        assert not id_.startswith("-") and not meta_properties.is_reserved(id_)


@pytest.mark.conformance(132, 139, 142)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_format_writes_ids_into_every_directory(storage: Storage, count: int) -> None:
    dirs = three(storage.root)[:count]
    beside = storage.root / "a"
    code, out, _ = storage.format(storage.config(*reversed(dirs), metadata=beside))
    assert (code, out) == (
        0,
        [
            *(f"Formatting data directory {path} with metadata.version 4.3-IV0." for path in dirs),
            f"Formatting metadata directory {beside} with metadata.version 4.3-IV0.",
        ],
    )
    found = [values(path) for path in (*dirs, beside)]
    assert {(each["cluster.id"], each["node.id"]) for each in found} == {(CLUSTER, "1")}
    assert len({each["directory.id"] for each in found}) == count + 1
    if storage.differs("meta-properties-2"):
        assert {each["version"] for each in found} == {"2"}
        assert {frozenset(each["directory.ids"].split(",")) for each in found} == {
            frozenset(each["directory.id"] for each in found)
        }
    else:
        assert {each["version"] for each in found} == {"1"} and not any("directory.ids" in each for each in found)


@pytest.mark.conformance(139)
@pytest.mark.parametrize(("release", "version"), [("4.1", "4.1-IV1"), ("3.7.1", "3.7-IV4"), ("3.9-IV0", "3.9-IV0")])
def test_release_is_told(storage: Storage, release: str, version: str) -> None:
    one, *_ = three(storage.root)
    code, out, _ = storage.format(storage.config(one), "-r", release)
    assert (code, out) == (0, [f"Formatting metadata directory {one} with metadata.version {version}."])


@pytest.mark.conformance(133, 134, 135)
def test_what_is_formatted_is_refused_or_ignored(storage: Storage) -> None:
    dirs = three(storage.root)
    assert storage.format(storage.config(dirs[0]))[0] == 0
    before = values(dirs[0])
    config = storage.config(*dirs)
    code, out, err = storage.format(config)
    assert (code, out) == (1, [])
    assert f"Log directory {dirs[0]} is already formatted. Use --ignore-formatted to ignore this directory" in err
    assert values(dirs[0]) == before and not dirs[1].exists()
    code, out, _ = storage.format(config, "-g")
    assert code == 0
    assert out == [f"Formatting data directory {path} with metadata.version 4.3-IV0." for path in dirs[1:]]
    assert values(dirs[0])["directory.id"] == before["directory.id"]
    for _ in range(2):
        assert storage.format(config, "-g")[:2] == (0, ["All of the log directories are already formatted."])
    assert len({values(path)["directory.id"] for path in dirs}) == 3


@pytest.mark.conformance(125)
def test_folders_of_another_cluster_or_node(storage: Storage) -> None:
    one, two, _ = three(storage.root)
    assert storage.format(storage.config(one))[0] == 0
    code, _, err = storage.format(storage.config(one, two), "-g", cluster="another")
    assert code == 1
    assert f"Invalid cluster.id in: {one}/meta.properties. Expected another, but read {CLUSTER}" in err
    code, _, err = storage.format(storage.config(one, two, node=2), "-g")
    assert code == 1
    assert f"Stored node id 1 doesn't match previous node id 2 in {one}/meta.properties" in err
    assert not two.exists()


@pytest.mark.conformance(136)
def test_directory_that_cannot_be_written(storage: Storage) -> None:
    code, _, err = storage.format(storage.config("/proc/none"))
    assert code == 1 and "Error while writing meta.properties file /proc/none: " in err
    assert not os.path.lexists("/proc/none")


@pytest.mark.conformance(137)
def test_one_directory_that_cannot_be_used(storage: Storage) -> None:
    one, two, three_ = three(storage.root)
    two.write_text("a file")
    code, out, err = storage.format(storage.config(one, two, three_))
    if storage.differs("format-needs-all"):
        assert (code, out) == (1, [])
        assert f"I/O error trying to read log directory {two}" in err
        assert not one.exists() and not three_.exists()
    else:
        assert code == 0 and f"I/O error trying to read log directory {two}. Ignoring..." in out
        assert values(one)["version"] == values(three_)["version"] == "1"


@pytest.mark.conformance(138)
def test_no_directory_that_can_be_used(storage: Storage) -> None:
    dirs = three(storage.root)
    for path in dirs:
        path.write_text("a file")
    code, _, err = storage.format(storage.config(*dirs))
    assert code == 1 and "No available log directories to format" in err


def test_replicas_in_a_folder_that_has_no_meta_properties(storage: Storage) -> None:
    one, two, _ = three(storage.root)
    (two / "orders-0").mkdir(parents=True)
    code, out, err = storage.format(storage.config(one, two))
    if storage.differs("format-keeps-off-replicas"):
        assert (code, out) == (1, []) and f"{two}: it has no meta.properties but holds replicas" in err
        assert not one.exists() and list(two.iterdir()) == [two / "orders-0"]
    else:
        assert code == 0 and "directory.id" in values(two)


@pytest.mark.parametrize(
    "option", [["-S", "SCRAM-SHA-256=[name=alice,password=secret]"], ["-f", "transaction.version=1"]], ids=["-S", "-f"]
)
def test_options_for_what_a_storage_node_has_not(storage: Storage, option: list[str]) -> None:
    one, *_ = three(storage.root)
    code, _, err = storage.format(storage.config(one), *option)
    if storage.differs("format-refuses-what-is-not-there"):
        assert code == 1 and not one.exists()
        assert "does not authenticate clients" in err or "Unsupported feature: transaction.version" in err
    else:
        assert code == 0 and one.exists()


@pytest.mark.parametrize(
    "option", [["-s"], ["-N"], ["-I", "1@127.0.0.1:19093:JEXY6aqzQY-32P5TStzaFg"]], ids=["-s", "-N", "-I"]
)
def test_options_for_a_quorum_that_a_storage_node_has_not(storage: Storage, option: list[str]) -> None:
    one, *_ = three(storage.root)
    config = Path(storage.config(one))
    config.write_text(config.read_text().replace("controller.quorum.voters=1@", "controller.quorum.bootstrap.servers="))
    code, out, err = storage.format(str(config), *option)
    assert code == 0 and values(one)["node.id"] == "1"
    made = {path.name for path in one.iterdir()} - {"meta.properties"}
    if storage.differs("format-refuses-what-is-not-there"):
        assert "has no effect" in err and not made
        assert out == [f"Formatting metadata directory {one} with metadata.version 4.3-IV0."]
    else:
        # A metadata log with its voters, but for a node that is to join others.
        voters = option != ["-N"]
        assert made == {"bootstrap.checkpoint", *(["__cluster_metadata-0"] if voters else [])}
        assert ("dynamic metadata voter directory" in out[0]) is voters


def test_wrong_usage(storage: Storage) -> None:
    for arguments in (["format"], ["info"], ["nonsense"], ["format", "-c", storage.config("/d"), "-s", "-N"]):
        assert storage.run(*arguments)[0] == (2 if storage.differs("usage-is-2") else 1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-r", "1.0"], "Unknown metadata.version '1.0'"),
        (["-f", "nonsense=1"], "Unsupported feature: nonsense. Supported features are: "),
        (["-r", "4.1", "-f", "metadata.version=27"], "Use --release-version instead of --feature metadata.version=X"),
        (["-s", "-N"], "not allowed with"),
    ],
)
def test_options_that_make_no_sense(storage: Storage, arguments: list[str], says: str) -> None:
    one, *_ = three(storage.root)
    code, out, err = storage.format(storage.config(one), *arguments)
    assert code != 0 and says in " ".join(re.split(r"\s+", "\n".join([*out, err])))
    assert not one.exists()


V1 = f"#\n#Fri Nov 20 10:00:00 UTC 2026\nnode.id=1\nversion=1\ncluster.id={CLUSTER}\ndirectory.id="
IDS = ("e6umYSUsQyq7jUUzL9iXMQ", "b4d9ExdORgaQq38CyHwWTA", "P2aL9r4sSqqyt7bC0uierg")
LEGACY = f"broker.id=1\ncluster.id={CLUSTER}\n"

#: Name -> what stands at d1, d2, d3: the text of a meta.properties, "" for none, None for no directory, a file's bytes.
FOLDERS: dict[str, tuple[str | bytes | None, ...]] = {
    "one": (V1 + IDS[0],),
    "all": (V1 + IDS[0], V1 + IDS[1], V1 + IDS[2]),
    "without ids": (V1.replace("directory.id=", ""),),
    "with keys of another program": (V1 + IDS[0] + "\nour.own=x\n",),
    "with the ids of all": (V1 + IDS[0] + f"\ndirectory.ids={IDS[0]},{IDS[1]}\n", V1 + IDS[1]),
    "nothing there": (None, None),
    "unformatted, a file, missing": (V1 + IDS[0], "", b"x"),
    "one missing": (None, V1 + IDS[1]),
    "two clusters": (V1 + IDS[0], (V1 + IDS[1]).replace(CLUSTER, "another")),
    "two nodes": (V1 + IDS[0], (V1 + IDS[1]).replace("node.id=1", "node.id=2")),
    "two nodes and clusters": (V1 + IDS[0], (V1 + IDS[1]).replace("node.id=1", "node.id=2").replace(CLUSTER, "x")),
    "before KRaft": (LEGACY,),
    "before KRaft, and after": (LEGACY, V1 + IDS[1]),
}


def build(root: Path, what: tuple[str | bytes | None, ...]) -> list[Path]:
    dirs = three(root)[: len(what)]
    for path, content in zip(dirs, what, strict=True):
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content is not None:
            path.mkdir()
            if content:
                (path / "meta.properties").write_text(content)
    return dirs


@pytest.mark.kafka
@pytest.mark.conformance(140, 141, 142)
def test_info_prints_what_kafka_storage_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], warm_tools: WarmTools
) -> None:
    ours = Storage("rehome", tmp_path, capsys, None)
    kafkas = Storage(APACHE, tmp_path, capsys, warm_tools)
    for name, what in FOLDERS.items():
        root = tmp_path / name.replace(" ", "-").replace(",", "")
        root.mkdir()
        dirs = build(root, what)
        for config in (
            ours.config(*dirs),
            ours.config(*reversed(dirs), dirs[0]),
            ours.config(*dirs, metadata=root / "d0"),
        ):
            wanted, found = kafkas.run("info", "-c", config), ours.run("info", "-c", config)
            assert found[:2] == wanted[:2], name
            assert wanted[1], "Kafka's tool says something"


@pytest.mark.kafka
@pytest.mark.feature("858-04", "858-07")
def test_folders_go_from_kafka_to_us_and_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], warm_tools: WarmTools
) -> None:
    ours = Storage("rehome", tmp_path, capsys, None)
    kafkas = Storage(APACHE, tmp_path, capsys, warm_tools)
    dirs = three(tmp_path)
    config = ours.config(*dirs, metadata=dirs[1])
    assert kafkas.format(config)[0] == 0
    before = [values(path) for path in dirs]
    assert ours.format(config, "-g")[:2] == (0, ["All of the log directories are already formatted."])
    assert [values(path)["directory.id"] for path in dirs] == [each["directory.id"] for each in before]
    assert {values(path)["version"] for path in dirs} == {"2"}
    code, out, _ = kafkas.run("info", "-c", config)
    assert code == 1 and any("meta.properties: " in line for line in out), "Kafka reads no version 2"
    assert ours.format(config, "-g", "--meta-version", "1")[0] == 0
    info = kafkas.run("info", "-c", config)
    assert info[:2] == ours.run("info", "-c", config)[:2] and info[0] == 0
    for path, each in zip(dirs, before, strict=True):
        now = values(path)
        assert set(now.pop("directory.ids").split(",")) == {other["directory.id"] for other in before}
        assert now == each
    assert kafkas.format(config, "-g")[:2] == (0, ["All of the log directories are already formatted."])
