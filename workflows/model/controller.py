"""What the controller decides: the state or what is being collected, who must be told what, who is suspect. Knows no
Temporal.

A mutable object around immutable values: the `Cluster` workflow calls it from its handlers and carries out what it asks
for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from workflows.model import commands, fields, image, recover, registration, rules
from workflows.model.batches import Batches
from workflows.model.calls import ImageResult
from workflows.model.deltas import Deltas
from workflows.model.image import Image
from workflows.model.outcome import Change, Code, Reassigned, Refused, Result
from workflows.model.recover import Collecting
from workflows.model.renewal import COLLECTING, Limits, Renewal
from workflows.model.state import ClusterState, Node, pack, unpack

#: A batch is one update: what does not fit goes into the next.
MAX_COMMANDS = 10_000
Pair = tuple[int, int]


def check_batch(batch: Any) -> None:
    """Raise BadField unless this is a batch: {"node", "incarnation", "number", "generation", "version", "commands"}."""
    row = fields.an_object(batch, "$")
    fields.a_number(fields.need(row, "node", "$"), "$.node", 0, (1 << 31) - 1)
    fields.a_string(fields.need(row, "incarnation", "$"), "$.incarnation")
    fields.a_number(row.get("number", 0), "$.number")
    fields.a_number(row.get("generation", 0), "$.generation")
    fields.a_number(row.get("version", 0), "$.version")
    rows = fields.a_list(fields.need(row, "commands", "$"), "$.commands")
    if len(rows) > MAX_COMMANDS:
        raise fields.BadField("$.commands", f"has {len(rows)} entries, but may have {MAX_COMMANDS}")


class Controller:
    """Serving: `state` is set. Collecting (its memory is lost, or a node knows more): `collecting` is set, `state` is
    not.
    """

    def __init__(self, cluster: str, continue_at: Limits) -> None:
        self.cluster = cluster
        self.continue_at = continue_at
        """What this run continues at, to its end."""
        self._newest = continue_at
        """The program's own figures, for the runs that follow; unless the first run's parameter has `_named` others."""
        self._named = False
        self.rules = rules.RULES
        """The version of the rules by which this run decides, to its end; see rules.py."""
        self.state: ClusterState | None = None
        self.collecting: Collecting | None = Collecting(cluster)
        self.suspects: dict[int, str] = {}
        self.quietly_changed = False
        self.changes = 0
        """How many versions this run has made."""
        self.reassigned: list[Reassigned] = []
        """Reassignments that nodes asked for and for which no run was started yet; see `take_reassigned`."""
        self.settled: list[Reassigned] = []
        """The same for those that were done at once; see `take_settled`."""
        self._memory: ClusterState | None = None
        self._registrations: dict[int, Mapping[str, Any]] = {}
        self._known: dict[int, Pair] = {}
        self._applied: dict[int, Pair] = {}
        self._batches = Batches()
        self._urgent = 0
        self._deltas = Deltas()
        self._reader = image.Reader()

    @staticmethod
    def start(cluster: str, carried: Any, continue_at: Limits | None = None) -> Controller:
        """A controller without memory, or with what an earlier run carried over; ValueError for another format, and for
        rules that this program does not know.
        """
        it = Controller(cluster, continue_at or Limits())
        if isinstance(carried, Mapping) and carried.get("continue_at"):
            it._named = bool(carried.get("continue_at_named", "v" not in carried))
            it.continue_at = it.continue_at.with_row(carried["continue_at"])
        it.rules = rules.of_run(carried)
        if not isinstance(carried, Mapping) or "v" not in carried:
            return it
        if carried["v"] != 1:
            raise ValueError(f"carried over in format {carried['v']}, this program reads 1")
        held = ClusterState.of(unpack(carried["state"]), it.rules) if carried["state"] else None
        it.suspects = {int(node): str(incarnation) for node, incarnation in carried["suspects"]}
        it._known = {int(node): (generation, version) for node, generation, version in carried["known"]}
        it._applied = {int(node): (generation, version) for node, generation, version in carried.get("applied", [])}
        it._batches = Batches.of(unpack(carried["batches"])) if carried.get("batches") else Batches()
        if carried["collecting"]:
            it._collect(held, frozenset(carried["without"]))
        elif held is not None:
            it.state, it.collecting, it._urgent = held, None, held.version
        return it

    def carry(self) -> dict[str, Any]:
        """What the next run starts with: the rows, and who knows which version. Answers still awaited are asked for
        again. The next run decides by the newest rules, and continues at the newest figures.
        """
        held = self.state or self._memory
        batches = self._batches.rows()
        return {
            "v": 1,
            "continue_at": (self.continue_at if self._named else self._newest).row(),
            "continue_at_named": self._named,
            "rules": rules.RULES,
            "state": pack(held.rows()) if held else "",
            "collecting": self.collecting is not None,
            "without": sorted(self.collecting.without) if self.collecting else [],
            "known": [[node, *pair] for node, pair in sorted(self._known.items())],
            "applied": [[node, *pair] for node, pair in sorted(self._applied.items())],
            "batches": pack(batches) if batches else "",
            "suspects": [[node, incarnation] for node, incarnation in sorted(self.suspects.items())],
        }

    def forget_results(self) -> None:
        """Let go of what nodes were answered, where there is no room to carry it: see `Batches.forget`."""
        self._batches.forget()

    def renewal(self, events: int, grown: int) -> Renewal:
        """Whether a run that has come so far is to continue as new.

        What was collected is not carried: every node would have to send its image again, and a node that an operator
        gives up meanwhile would not be awaited.
        """
        limits = self.continue_at if self.collecting is None else COLLECTING
        return limits.due(events, grown, self.changes)

    # --- commands

    def submit(self, batch: Mapping[str, Any], new_id: Callable[[], str], *, replaying: bool = False) -> dict[str, Any]:
        """Apply a node's commands, in order; those of a batch that is sent again were applied, see `Batches`. A
        registration that is sent again while collecting counts as a new one: the controller needs it once more. While
        `replaying` the answer was given before, and needs no image.

        The answer: `generation` and `version` after it (0, 0 while collecting); `results`, per command a list with one
        result per item; `image`, what the node lacks (whole or a delta; "" for nothing, and where it takes several
        images, which are pushed together); `digest`, of the metadata at that generation and version ("" while
        collecting); `register`: the node is to register again with its image; `awaited`: while collecting, the nodes
        whose images are missing.

        A batch at (0, 0) is of a node that has no image, or that wants a whole one for other metadata than this at the
        same version.
        """
        node, incarnation = int(batch["node"]), str(batch["incarnation"])
        pair = (int(batch.get("generation", 0)), int(batch.get("version", 0)))
        if self.state is not None and pair > self.state.pair:
            self._collect(self.state, frozenset())
        number, batched = int(batch.get("number", 0)), batch["commands"]
        results = None
        if self.state is not None or not any(_does(command, "register") for command in batched):
            results = self._batches.results(node, incarnation, number, len(batched))
        if results is None:
            results = [self._one(node, incarnation, pair, command, new_id) for command in batched]
            self._remember(node, incarnation, number, results)
        state = self.state
        if state is None:
            awaited = list(self.collecting.awaited) if self.collecting else []
            return self._reply((0, 0), results, "", register=True, awaited=awaited)
        stale = commands.from_stale_node(state, node, incarnation)
        if stale is not None:
            return self._reply(state.pair, results, "", register=True)
        exactly = pair == (0, 0) or any(_does(command, "register") for command in batch["commands"])
        images: list[str] = []
        if exactly:  # what the node knows then follows from it, in a replay as well
            images = self._deltas.exactly(state, pair)
        elif not replaying:
            images = self._deltas.since(state, pair)
        if exactly and len(images) == 1:
            self._known[node] = state.pair
        elif pair == (0, 0):
            self._known[node] = pair
        elif pair[0] == state.generation:
            self._known[node] = max(self._known.get(node, (0, 0)), pair)
        return self._reply(state.pair, results, images[0] if len(images) == 1 else "", digest=state.digest)

    def _remember(self, node: int, incarnation: str, number: int, results: list[list[Result]]) -> None:
        """Remember batches of registered nodes only: others, and all while collecting, were rejected."""
        known = self.state.nodes.get(node) if self.state is not None else None
        if known is not None and known.incarnation == incarnation:
            self._batches.remember(node, incarnation, number, results)

    @staticmethod
    def _reply(
        pair: Pair,
        results: list[list[Result]],
        text: str,
        *,
        digest: str = "",
        register: bool = False,
        awaited: list[int] | None = None,
    ) -> dict[str, Any]:
        return {
            "generation": pair[0],
            "version": pair[1],
            "results": results,
            "image": text,
            "digest": digest,
            "register": register,
            "awaited": awaited or [],
        }

    def _one(self, node: int, incarnation: str, pair: Pair, command: Any, new_id: Callable[[], str]) -> list[Result]:
        registers = _does(command, "register")
        if registers and (command.get("node"), command.get("incarnation")) != (node, incarnation):
            return [Refused(Code.INVALID_REQUEST, "A node registers itself, in a batch of its own name.").result()]
        if self.state is None:
            return self._collected(node, pair, command) if registers else [self._busy(Code.BROKER_ID_NOT_REGISTERED)]
        if not registers and (stale := commands.from_stale_node(self.state, node, incarnation)):
            return [stale.result()]
        if any(_does(command, name) for name in commands.OF_RUNS):
            return [Refused(Code.INVALID_REQUEST, f"The command {command['do']} is for runs, not for nodes.").result()]
        change = commands.apply(self.state, command, new_id)
        if registers:
            if problem := self._foreign(command):
                return [problem.result()]
            self._known[node] = pair if pair[0] == change.state.generation else (0, 0)
            self.suspects.pop(node, None)
        self._changed(change.state, quiet=change.quiet)
        self.reassigned += change.reassigned
        self.settled += change.settled
        return change.results

    def take_reassigned(self) -> list[Reassigned]:
        """The reassignments that have begun, or been given another target, since this was last asked; the last word on
        each.
        """
        newest = {(each.topic, each.partition): each for each in self.reassigned}
        self.reassigned = []
        return list(newest.values())

    def take_settled(self) -> list[Reassigned]:
        """The same of what was done at once, without what has gone on to elsewhere since."""
        newest = {(each.topic, each.partition): each for each in self.settled}
        self.settled = []
        return [each for key, each in newest.items() if not self._reassigning(*key)]

    def _reassigning(self, topic: str, partition: int) -> bool:
        held = self.state.topics.get(topic) if self.state is not None else None
        return held is None or any(each.index == partition and each.assignment.reassigning for each in held.partitions)

    def carry_out(self, command: Mapping[str, Any]) -> Change | None:
        """Apply a command that does not come from a node; None while collecting."""
        if self.state is None:
            return None
        change = commands.apply(self.state, command, str)
        self._changed(change.state, quiet=change.quiet)
        return change

    def _foreign(self, command: Mapping[str, Any]) -> Refused | None:
        """Why a registration cannot be of this cluster's node, or None."""
        try:
            held = image.cluster_of(command["image"]) if command.get("image") else command.get("cluster")
        except ValueError:
            return None  # damaged, and not needed
        if held and held != self.cluster:
            return Refused(
                Code.INCONSISTENT_CLUSTER_ID, f"The node belongs to cluster '{held}', this is '{self.cluster}'."
            )
        return None

    def _busy(self, code: int = Code.REQUEST_TIMED_OUT) -> Result:
        """The answer while collecting; a command other than a registration tells its node to register first."""
        awaited = ", ".join(str(node) for node in self.collecting.awaited) if self.collecting else ""
        who = f"node {awaited}" if awaited else "a first node"
        return Refused(code, f"The controller collects the nodes' metadata and waits for {who}; try again.").result()

    def _changed(self, state: ClusterState, *, quiet: bool) -> None:
        if self.state is not None and state.version != self.state.version:
            self.quietly_changed = self.quietly_changed or quiet
            self._urgent = self._urgent if quiet else state.version
            self.changes += state.version - self.state.version
        self.state = state

    # --- collecting

    def _collect(self, memory: ClusterState | None, without: frozenset[int]) -> None:
        """Stop serving until the nodes' images are merged; `memory` is one more image."""
        held = image.of_state(memory) if memory else None
        self.collecting = Collecting(self.cluster, without=without, memory=held)
        self.state, self._memory, self._registrations, self._known = None, memory, {}, {}
        self._reader = image.Reader()
        self.suspects = {}

    def _collected(self, node: int, pair: Pair, command: Mapping[str, Any]) -> list[Result]:
        """A node's registration while collecting; the last one awaited makes the new state."""
        assert self.collecting is not None
        held: Image | None = None
        try:
            if not command.get("image") and self._has_answer(node, pair, command):
                held = self.collecting.answers[node]
            elif command.get("image"):
                held = image.decode(command["image"], self._reader)
            elif pair != (0, 0):
                lacking = Refused(Code.INVALID_REQUEST, "The registration lacks the node's image.")
                return [{**lacking.result(), "wants_image": True}]
            self.collecting = self.collecting.answer(node, held)
        except ValueError as damaged:
            return [Refused(Code.INVALID_REQUEST, f"The registration's image is damaged: {damaged}").result()]
        except Refused as refused:
            return [refused.result()]
        self._registrations[node] = command
        return self._merged().get(node) or [self._busy()]

    def _has_answer(self, node: int, pair: Pair, command: Mapping[str, Any]) -> bool:
        """Whether the image that a node's incarnation knows is here: it registers again for as long as others are
        awaited.
        """
        held = self.collecting.answers.get(node) if self.collecting else None
        before = self._registrations.get(node, {}).get("incarnation")
        return held is not None and held.pair == pair and before == command.get("incarnation")

    def _merged(self) -> dict[int, list[Result]]:
        """Once nobody is awaited: the new state, every node that answered registered in it; their results."""
        if self.collecting is None or not self.collecting.complete:
            return {}
        state, results = registration.register_all(
            recover.merge(self.collecting, rules=self.rules), self._registrations
        )
        self.state, self.collecting, self._memory, self._registrations = state, None, None, {}
        self._reader = image.Reader()
        self._known, self._urgent, self.quietly_changed = {}, state.version, False
        self.changes += len(state.topics)
        return results

    def to_ask(self) -> list[int]:
        """While collecting: the nodes to ask for their images."""
        return list(self.collecting.awaited) if self.collecting else []

    def check_give_up(self, order: Any) -> int:
        """The node to go on without. Raises ValueError when none is awaited, or not this one."""
        row = fields.an_object(order, "$", ("node",))
        node = fields.a_number(fields.need(row, "node", "$"), "$.node")
        if self.collecting is None:
            raise fields.BadField("$.node", f"is {node}, but no node is awaited: the cluster serves")
        if node not in self.collecting.awaited:
            awaited = ", ".join(map(str, self.collecting.awaited)) or "none"
            raise fields.BadField("$.node", f"is {node}, which is not awaited; awaited: {awaited}")
        return node

    def give_up(self, node: int) -> None:
        """Go on without a node's image."""
        if self.collecting is not None:
            self.collecting = self.collecting.give_up(node)
            self._merged()

    # --- nodes

    def registered(self, node: int) -> Node | None:
        """A node's registration, None without one, or while it is fenced."""
        known = self.state.nodes.get(node) if self.state else None
        return None if known is None or known.fenced else known

    @property
    def alive(self) -> tuple[int, ...]:
        """The unfenced nodes; none while collecting."""
        return self.state.alive if self.state is not None else ()

    def may_know(self, node: int) -> bool:
        """Whether a node has ever registered; while collecting nobody can say no."""
        return self.state is None or node in self.state.nodes

    def may_lease(self, node: int, incarnation: str) -> bool:
        """Whether a lease may be held on a node's incarnation, now or once it registers again."""
        return self.may_know(node) and len(incarnation) <= registration.LONGEST_INCARNATION

    def to_lease(self) -> list[tuple[int, str]]:
        """The nodes and incarnations that a lease is to be held on."""
        nodes = self.state.nodes.values() if self.state else ()
        return sorted(
            (each.node, each.incarnation) for each in nodes if not each.fenced and each.node not in self.suspects
        )

    def suspect(self, node: int, incarnation: str) -> None:
        """A lease ended: ask the node, unless it is fenced already or another incarnation is registered."""
        known = self.registered(node)
        if known is not None and known.incarnation == incarnation:
            self.suspects[node] = incarnation

    def trust(self, node: int, incarnation: str) -> None:
        """The question is answered, either way."""
        if self.suspects.get(node) == incarnation:
            del self.suspects[node]

    def fence(self, node: int, incarnation: str) -> None:
        """The node is gone: its partitions lose their leader."""
        if self.state is not None:
            ended = {"do": "lease_ended", "node": node, "incarnation": incarnation}
            self._changed(commands.apply(self.state, ended, str).state, quiet=False)

    def to_push(self) -> list[int]:
        """The unfenced nodes that do not know yet what they should."""
        if self.state is None:
            return []
        due = (self.state.generation, self._urgent)
        return [node for node in self.state.alive if self._known.get(node, (0, 0)) < due]

    def make_urgent(self) -> None:
        """Let quiet changes be pushed now."""
        self.quietly_changed = False
        if self.state is not None:
            self._urgent = self.state.version

    def images_for(self, node: int) -> list[str]:
        """What a node lacks."""
        if self.state is None:
            return []
        others = [self._known.get(each, (0, 0)) for each in self.to_push()]
        return self._deltas.since(self.state, self._known.get(node, (0, 0)), others)

    @property
    def packed(self) -> int:
        """How often images were packed."""
        return self._deltas.packed

    def lacks(self, node: int) -> int:
        """How many partitions a node's next images hold."""
        return self._deltas.weight(self.state, self._known.get(node, (0, 0))) if self.state else 0

    @property
    def pair(self) -> Pair:
        """The state's (generation, version); (0, 0) while collecting."""
        return self.state.pair if self.state else (0, 0)

    @property
    def stamp(self) -> tuple[int, int, str]:
        """The state's generation, version and digest; (0, 0, "") while collecting."""
        return (*self.state.pair, self.state.digest) if self.state else (0, 0, "")

    def pushed(self, node: int, result: ImageResult, due: Pair) -> bool:
        """Note what a node knows after a push of `due`; answers whether it knows that now.

        One that knows more than the state shows that the controller lost its memory: it collects.
        """
        if self.state is None:
            return True
        known = (result.generation, result.version)
        if known > self.state.pair:
            self._collect(self.state, frozenset())
            return True
        registered = self.registered(node)
        if registered is not None and result.incarnation in ("", registered.incarnation):
            self._known[node] = known
            if all(each.online for each in registered.directories):  # what is offline cannot have been deleted
                self._applied[node] = known
                self.state = self.state.forget_deletions(self._confirmed(self.state))
        return known >= due

    def _confirmed(self, state: ClusterState) -> int:
        """The version that every registered node has applied in all of its directories, 0 while one has not."""
        pairs = [self._applied.get(node, (0, 0)) for node in state.nodes]
        return min((version if generation == state.generation else 0 for generation, version in pairs), default=0)

    def directory_failed(self, notice: Any) -> dict[str, Any]:
        """Take in what a DirectoryFailure run tells; the result as commands have it, an error when it is to be told
        again.
        """
        if self.state is None:
            return self._busy()
        command = {**notice, "do": "directory_failed"} if isinstance(notice, Mapping) else notice
        change = commands.apply(self.state, command, str)
        self._changed(change.state, quiet=change.quiet)
        return change.results[0]

    def _unconfirmed(self, state: ClusterState) -> int:
        """How many deletions some node has yet to confirm."""
        confirmed = self._confirmed(state)
        return sum(1 for each in state.gone if each.changed > confirmed)

    def describe(self) -> dict[str, Any]:
        """A summary for people."""
        state = self.state or self._memory
        collecting = self.collecting is not None
        nodes = sorted(state.nodes.values(), key=lambda each: each.node) if state else []
        return {
            "cluster": self.cluster,
            "phase": "collecting" if collecting else "serving",
            "rules": self.rules,
            "awaited": list(self.collecting.awaited) if self.collecting else [],
            "answered": sorted(self.collecting.answers) if self.collecting else [],
            "generation": state.generation if state else 0,
            "version": state.version if state else 0,
            "topics": len(state.topics) if state else 0,
            "partitions": sum(len(each.partitions) for each in state.topics.values()) if state else 0,
            "deletions": self._unconfirmed(state) if state else 0,
            "nodes": [
                {
                    "node": each.node,
                    "incarnation": each.incarnation,
                    "broker_epoch": each.broker_epoch,
                    "host": each.host,
                    "port": each.port,
                    "fenced": each.fenced,
                    "suspect": each.node in self.suspects,
                    "directories": [[one.id, one.path, one.online] for one in each.directories],
                    "known": list(self._known.get(each.node, (0, 0))),
                }
                for each in nodes
            ],
        }


def _does(command: Any, name: str) -> bool:
    return isinstance(command, Mapping) and command.get("do") == name
