"""Activities that the controller's process does for the metadata: asking a node who it is."""

from __future__ import annotations

import asyncio

from temporalio import activity

from storage_node.protocol import private_client
from workflows.model import calls


@activity.defn(name=calls.PROBE_NODE)
async def probe_node(call: calls.ProbeCall) -> calls.ProbeResult:
    """Ask a node at its listener for its incarnation, before it is fenced; silence is an answer too."""
    try:
        answer = await asyncio.wait_for(
            asyncio.to_thread(private_client.call, call.host, call.port, "incarnation", timeout=call.timeout),
            call.timeout + 0.5,
        )
    except Exception as error:  # whatever it is, the node did not say who it is
        refused = isinstance(error, ConnectionRefusedError)
        return calls.ProbeResult(reason=str(error) or type(error).__name__, refused=refused)
    if answer.get("node") != call.node:
        return calls.ProbeResult(reason=f"node {answer.get('node')} answers at {call.host}:{call.port}")
    return calls.ProbeResult(incarnation=str(answer.get("incarnation", "")), reason=str(answer.get("message", "")))
