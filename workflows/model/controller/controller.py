"""The controller's decisions: its state or what it collects, what it pushes to which node, which nodes are suspect.
Without Temporal.

A mutable object around immutable values: the `Cluster` workflow calls it from its handlers, and carries out what it
returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from storage_node.model import fields
from storage_node.model.command_rows import LONGEST_INCARNATION
from storage_node.model.commands import Command, LeaseEnded, Registration
from storage_node.model.error_codes import ErrorCode
from storage_node.model.image import ImageMessage, Reader, cluster_of, decode
from storage_node.model.metadata import NodeImage
from storage_node.model.packing import pack, unpack
from workflows.model.calls import ImageResult
from workflows.model.controller import recover
from workflows.model.controller.batches import Batches
from workflows.model.controller.deltas import Deltas
from workflows.model.controller.recover import Collecting
from workflows.model.controller.renewal import COLLECTING, Limits, Renewal
from workflows.model.metadata import commands, registration, rules
from workflows.model.metadata.outcome import Change, Reassigned, Refused, Result
from workflows.model.metadata.state import ClusterState
from workflows.model.run_progress import ClusterDescription, NodeDescription

#: The maximum number of commands in a batch, which is one update; the others go into the next.
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
    """Serving: `state` is set. Collecting (its state is lost, or a node has newer metadata): `collecting` is set, and
    `state` is not.
    """

    def __init__(self, cluster: str, continue_at: Limits) -> None:
        self.cluster = cluster
        self.continue_at = continue_at
        """The limits at which this run continues as new."""
        self._newest = continue_at
        """The program's own limits, for the runs that follow; unless the first run's parameter has `_named` others."""
        self._named = False
        self.rules = rules.RULES
        """The version of the rules by which this run decides; see rules.py."""
        self.state: ClusterState | None = None
        self.collecting: Collecting | None = Collecting(cluster)
        self.suspects: dict[int, str] = {}
        self.quietly_changed = False
        self.changes = 0
        """The number of versions that this run has made."""
        self.reassigned: list[Reassigned] = []
        """Reassignments that nodes have requested, and that have no run yet; see `take_reassigned`."""
        self.completed: list[Reassigned] = []
        """The same for those that completed at once; see `take_completed`."""
        self._memory: ClusterState | None = None
        self._registrations: dict[int, Registration] = {}
        self._known: dict[int, Pair] = {}
        self._applied: dict[int, Pair] = {}
        self._batches = Batches()
        self._urgent = 0
        self._deltas = Deltas()
        self._reader = Reader()

    @staticmethod
    def start(cluster: str, carried: Any, continue_at: Limits | None = None) -> Controller:
        """Return a controller without state, or with the one that an earlier run carried over. Raises ValueError for
        another format, and for rules that this program does not know.
        """
        it = Controller(cluster, continue_at or Limits())
        if isinstance(carried, Mapping) and carried.get("continue_at"):
            it._named = bool(carried.get("continue_at_named", "v" not in carried))
            it.continue_at = it.continue_at.with_row(carried["continue_at"])
        it.rules = rules.of_run(carried)
        if not isinstance(carried, Mapping) or "v" not in carried:
            return it
        if carried["v"] != 1:
            raise ValueError(f"the carried state has format {carried['v']}, but this program only reads format 1")
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
        """Return the next run's parameter: the rows, and the version that each node knows. The next run requests images
        that are still awaited again; it decides by the newest rules, and continues at the newest limits.
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
        """Drop the results of the nodes' batches, which are too large to carry: see `Batches.forget`."""
        self._batches.forget()

    def renewal(self, events: int, grown: int) -> Renewal:
        """Return whether a run with so many events, and bytes by which its history has grown, should continue as new.

        Collected images are not carried: every node would have to send its image again, and a node that an operator has
        given up would be awaited again.
        """
        limits = self.continue_at if self.collecting is None else COLLECTING
        return limits.due(events, grown, self.changes)

    # --- commands

    def submit(self, batch: Mapping[str, Any], new_id: Callable[[], str], *, replaying: bool = False) -> dict[str, Any]:
        """Apply a node's commands in order, and return the reply; a repeated batch is not applied again, see `Batches`.

        A registration that is repeated while collecting counts as a new one: the controller needs it once more. While
        `replaying` the reply needs no image, since the node has received it.

        The reply: `generation` and `version` after the batch (0, 0 while collecting); `results`, per command a list
        with one result per item; `image`, which the node lacks (whole or a delta; "" for none, and if it needs several,
        which are pushed together); `digest`, of the metadata at that generation and version ("" while collecting);
        `register`: the node must register again with its image; `awaited`: while collecting, the nodes whose images are
        missing.

        A batch at (0, 0) is of a node that has no image, or that requests a whole one, since its metadata at the same
        version has another digest.
        """
        node, incarnation = int(batch["node"]), str(batch["incarnation"])
        pair = (int(batch.get("generation", 0)), int(batch.get("version", 0)))
        if self.state is not None and pair > self.state.pair:
            self._collect(self.state, frozenset())
        number, batched = int(batch.get("number", 0)), batch["commands"]
        results = None
        if self.state is not None or not any(does(command, "register") for command in batched):
            results = self._batches.results(node, incarnation, number, len(batched))
        if results is None:
            results = [self._apply(node, incarnation, pair, command, new_id) for command in batched]
            self._remember(node, incarnation, number, results)
        state = self.state
        if state is None:
            awaited = list(self.collecting.awaited) if self.collecting else []
            return self._reply((0, 0), results, "", register=True, awaited=awaited)
        stale = commands.from_stale_node(state, node, incarnation)
        if stale is not None:
            return self._reply(state.pair, results, "", register=True)
        exactly = pair == (0, 0) or any(does(command, "register") for command in batch["commands"])
        images: list[str] = []
        if exactly:  # What the node knows is determined by this image, so a replay computes it as well.
            images = self._deltas.exactly(state, pair)
        elif not replaying:
            images = self._deltas.since(state, pair)
        if exactly and len(images) == 1:
            self._known[node] = state.pair
        elif pair == (0, 0):
            self._known[node] = pair
        elif pair[0] == state.cluster_generation:
            self._known[node] = max(self._known.get(node, (0, 0)), pair)
        return self._reply(state.pair, results, images[0] if len(images) == 1 else "", digest=state.digest)

    def _remember(self, node: int, incarnation: str, number: int, results: list[list[Result]]) -> None:
        """Remember the batch of a registered node; those of others, and all while collecting, were rejected."""
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

    def _apply(self, node: int, incarnation: str, pair: Pair, row: Any, new_id: Callable[[], str]) -> list[Result]:
        registers = does(row, "register")
        if registers and (row.get("node"), row.get("incarnation")) != (node, incarnation):
            problem = "A node may only register itself: the batch must have its id and incarnation."
            return [Refused(ErrorCode.INVALID_REQUEST, problem).result()]
        if self.state is None and not registers:
            return [self._busy(ErrorCode.BROKER_ID_NOT_REGISTERED)]
        stale = commands.from_stale_node(self.state, node, incarnation) if self.state is not None else None
        if stale is not None and not registers:
            return [stale.result()]
        try:
            command = commands.read(row)
        except Refused as refused:
            return [refused.result()]
        if self.state is None:
            assert isinstance(command, Registration)
            return self._collected(node, pair, command)
        change = commands.carry_out(self.state, command, new_id)
        if isinstance(command, Registration):
            if foreign := self._foreign(command):
                return [foreign.result()]
            self._known[node] = pair if pair[0] == change.state.cluster_generation else (0, 0)
            self.suspects.pop(node, None)
        self._changed(change.state, quiet=change.quiet)
        self.reassigned += change.reassigned
        self.completed += change.completed
        return change.results

    def take_reassigned(self) -> list[Reassigned]:
        """Return the reassignments that have begun, or got another target, since the last call; the latest of each
        partition.
        """
        newest = {(each.topic, each.partition): each for each in self.reassigned}
        self.reassigned = []
        return list(newest.values())

    def take_completed(self) -> list[Reassigned]:
        """Return the reassignments that completed at once since the last call, unless another one has begun since."""
        newest = {(each.topic, each.partition): each for each in self.completed}
        self.completed = []
        return [each for key, each in newest.items() if not self._reassigning(*key)]

    def _reassigning(self, topic: str, partition: int) -> bool:
        held = self.state.topics.get(topic) if self.state is not None else None
        return held is None or any(each.index == partition and each.assignment.reassigning for each in held.partitions)

    def carry_out(self, command: Command) -> Change | None:
        """Apply a command that does not come from a node; None while collecting."""
        if self.state is None:
            return None
        change = commands.carry_out(self.state, command, str)
        self._changed(change.state, quiet=change.quiet)
        return change

    def carry_out_row(self, row: Mapping[str, Any]) -> None:
        """Apply a run's command about throttles; does nothing while collecting."""
        if self.state is not None:
            change = commands.apply(self.state, row, str)
            self._changed(change.state, quiet=change.quiet)

    def _foreign(self, command: Registration) -> Refused | None:
        """Return the error of a registration of another cluster's node, None for one of this cluster."""
        try:
            held = cluster_of(command.image) if command.image else command.cluster
        except ValueError:
            return None  # The image is damaged, and the controller does not need it.
        if held and held != self.cluster:
            return Refused(
                ErrorCode.INCONSISTENT_CLUSTER_ID, f"The node belongs to cluster '{held}', this is '{self.cluster}'."
            )
        return None

    def _busy(self, code: int = ErrorCode.REQUEST_TIMED_OUT) -> Result:
        """Return the result of a command while collecting; the `code` makes a node register first."""
        awaited = ", ".join(str(node) for node in self.collecting.awaited) if self.collecting else ""
        missing = f"node {awaited}" if awaited else "a first node"
        return Refused(
            code, f"The controller collects the nodes' metadata and waits for {missing}; try again."
        ).result()

    def _changed(self, state: ClusterState, *, quiet: bool) -> None:
        if self.state is not None and state.version != self.state.version:
            self.quietly_changed = self.quietly_changed or quiet
            self._urgent = self._urgent if quiet else state.version
            self.changes += state.version - self.state.version
        self.state = state

    # --- collecting

    def _collect(self, memory: ClusterState | None, without: frozenset[int]) -> None:
        """Stop serving until the nodes' images are merged; `memory` is one more image."""
        held = memory.message() if memory else None
        self.collecting = Collecting(self.cluster, without=without, memory=held)
        self.state, self._memory, self._registrations, self._known = None, memory, {}, {}
        self._reader = Reader()
        self.suspects = {}

    def _collected(self, node: int, pair: Pair, command: Registration) -> list[Result]:
        """Collect the image of a node's registration; with the last awaited one the new state is merged."""
        assert self.collecting is not None
        held: ImageMessage | None = None
        try:
            if not command.image and self._has_image(node, pair, command):
                held = self.collecting.responses[node]
            elif command.image:
                held = decode(command.image, self._reader)
            elif pair != (0, 0):
                lacking = Refused(ErrorCode.INVALID_REQUEST, "The registration lacks the node's image.")
                return [{**lacking.result(), "wants_image": True}]
            self.collecting = self.collecting.with_response(node, held)
        except ValueError as damaged:
            return [Refused(ErrorCode.INVALID_REQUEST, f"The registration's image is damaged: {damaged}").result()]
        except Refused as refused:
            return [refused.result()]
        self._registrations[node] = command
        return self._merged().get(node) or [self._busy()]

    def _has_image(self, node: int, pair: Pair, command: Registration) -> bool:
        """Return whether the image of a node's incarnation was collected: the node registers repeatedly while others
        are awaited.
        """
        held = self.collecting.responses.get(node) if self.collecting else None
        before = self._registrations.get(node)
        same = before is not None and before.incarnation == command.incarnation
        return held is not None and held.pair == pair and same

    def _merged(self) -> dict[int, list[Result]]:
        """Merge the new state once no node is awaited, with all collected nodes registered; return their results."""
        if self.collecting is None or not self.collecting.complete:
            return {}
        state, results = registration.register_all(
            recover.merge(self.collecting, rules=self.rules), self._registrations
        )
        self.state, self.collecting, self._memory, self._registrations = state, None, None, {}
        self._reader = Reader()
        self._known, self._urgent, self.quietly_changed = {}, state.version, False
        self.changes += len(state.topics)
        return results

    def to_collect(self) -> list[int]:
        """Return the nodes from which to request images; none unless collecting."""
        return list(self.collecting.awaited) if self.collecting else []

    def check_give_up(self, request: Any) -> int:
        """Return the node to give up. Raises BadField if it is not awaited."""
        row = fields.an_object(request, "$", ("node",))
        node = fields.a_number(fields.need(row, "node", "$"), "$.node")
        if self.collecting is None:
            raise fields.BadField("$.node", f"is {node}, but no node is awaited: the cluster serves")
        if node not in self.collecting.awaited:
            awaited = ", ".join(map(str, self.collecting.awaited)) or "none"
            raise fields.BadField("$.node", f"is {node}, which is not awaited; awaited: {awaited}")
        return node

    def give_up(self, node: int) -> None:
        """Stop awaiting a node's image."""
        if self.collecting is not None:
            self.collecting = self.collecting.give_up(node)
            self._merged()

    # --- nodes

    def registered(self, node: int) -> NodeImage | None:
        """Return a node's registration, None without one, or while it is fenced."""
        known = self.state.nodes.get(node) if self.state else None
        return None if known is None or known.fenced else known

    @property
    def alive(self) -> tuple[int, ...]:
        """Return the unfenced nodes; none while collecting."""
        return self.state.alive if self.state is not None else ()

    def may_know(self, node: int) -> bool:
        """Return whether a node may have registered; while collecting any may have."""
        return self.state is None or node in self.state.nodes

    def may_lease(self, node: int, incarnation: str) -> bool:
        """Return whether a lease may be held on a node's incarnation, now or once it registers again."""
        return self.may_know(node) and len(incarnation) <= LONGEST_INCARNATION

    def to_lease(self) -> list[tuple[int, str]]:
        """Return the nodes and incarnations that need a lease."""
        nodes = self.state.nodes.values() if self.state else ()
        return sorted(
            (each.node, each.incarnation) for each in nodes if not each.fenced and each.node not in self.suspects
        )

    def suspect(self, node: int, incarnation: str) -> None:
        """Mark a node to be probed, since its lease ended; unless it is fenced or another incarnation is registered."""
        known = self.registered(node)
        if known is not None and known.incarnation == incarnation:
            self.suspects[node] = incarnation

    def clear_suspect(self, node: int, incarnation: str) -> None:
        """Clear a suspicion: the node was probed, or fenced."""
        if self.suspects.get(node) == incarnation:
            del self.suspects[node]

    def fence(self, node: int, incarnation: str) -> None:
        """Fence a node: its partitions elect other leaders, or have none."""
        if self.state is not None:
            change = commands.carry_out(self.state, LeaseEnded(node, incarnation), str)
            self._changed(change.state, quiet=False)

    def to_push(self) -> list[int]:
        """Return the unfenced nodes that lack urgent changes."""
        if self.state is None:
            return []
        due = (self.state.cluster_generation, self._urgent)
        return [node for node in self.state.alive if self._known.get(node, (0, 0)) < due]

    def make_urgent(self) -> None:
        """Make all quiet changes due for a push."""
        self.quietly_changed = False
        if self.state is not None:
            self._urgent = self.state.version

    def images_for(self, node: int) -> list[str]:
        """Return the images that a node lacks."""
        if self.state is None:
            return []
        others = [self._known.get(each, (0, 0)) for each in self.to_push()]
        return self._deltas.since(self.state, self._known.get(node, (0, 0)), others)

    @property
    def packed(self) -> int:
        """Return how often images were packed."""
        return self._deltas.packed

    def lacks(self, node: int) -> int:
        """Return how many partitions a node's next images hold."""
        return self._deltas.weight(self.state, self._known.get(node, (0, 0))) if self.state else 0

    @property
    def pair(self) -> Pair:
        """Return the state's (generation, version); (0, 0) while collecting."""
        return self.state.pair if self.state else (0, 0)

    @property
    def stamp(self) -> tuple[int, int, str]:
        """Return the state's generation, version and digest; (0, 0, "") while collecting."""
        return (*self.state.pair, self.state.digest) if self.state else (0, 0, "")

    def pushed(self, node: int, result: ImageResult, due: Pair) -> bool:
        """Note what a node knows after a push of `due`; return whether it has applied that.

        A node that has newer metadata than the state proves that the controller lost its state: it collects.
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
            # Data in offline directories cannot have been deleted.
            if all(each.online for each in registered.directories):
                self._applied[node] = known
                self.state = self.state.forget_deletions(self._confirmed(self.state))
        return known >= due

    def _confirmed(self, state: ClusterState) -> int:
        """Return the version that every registered node has applied in all of its directories; 0 if one has none."""
        pairs = [self._applied.get(node, (0, 0)) for node in state.nodes]
        return min(
            (version if generation == state.cluster_generation else 0 for generation, version in pairs), default=0
        )

    def directory_failed(self, notice: Any) -> dict[str, Any]:
        """Apply the report of a DirectoryFailure run and return its result; after an error the run reports it again."""
        if self.state is None:
            return self._busy()
        command = {**notice, "do": "directory_failed"} if isinstance(notice, Mapping) else notice
        change = commands.apply(self.state, command, str)
        self._changed(change.state, quiet=change.quiet)
        return change.results[0]

    def _unconfirmed(self, state: ClusterState) -> int:
        """Return how many deletions are not confirmed by all nodes yet."""
        confirmed = self._confirmed(state)
        return sum(1 for stamp in state.stamps.gone.values() if stamp > confirmed)

    def describe(self) -> ClusterDescription:
        """Return a summary for operators."""
        state = self.state or self._memory
        collecting = self.collecting is not None
        nodes = sorted(state.nodes.values(), key=lambda each: each.node) if state else []
        return ClusterDescription(
            cluster=self.cluster,
            phase="collecting" if collecting else "serving",
            rules=self.rules,
            awaited=list(self.collecting.awaited) if self.collecting else [],
            answered=sorted(self.collecting.responses) if self.collecting else [],
            generation=state.cluster_generation if state else 0,
            version=state.version if state else 0,
            topics=len(state.topics) if state else 0,
            partitions=sum(len(each.partitions) for each in state.topics.values()) if state else 0,
            deletions=self._unconfirmed(state) if state else 0,
            nodes=[
                NodeDescription(
                    node=each.node,
                    incarnation=each.incarnation,
                    broker_epoch=each.broker_epoch,
                    host=each.host,
                    port=each.port,
                    fenced=each.fenced,
                    suspect=each.node in self.suspects,
                    directories=[(one.id, one.path, one.online) for one in each.directories],
                    known=self._known.get(each.node, (0, 0)),
                )
                for each in nodes
            ],
        )


def does(command: Any, name: str) -> bool:
    """Return whether a row of a batch is the command of this name."""
    return isinstance(command, Mapping) and command.get("do") == name
