"""The activity of the controller's process that probes a node."""

from __future__ import annotations

import asyncio

from temporalio import activity

from storage_node.wire.client import private_client
from workflows.model import calls


@activity.defn(name=calls.PROBE_NODE)
async def probe_node(call: calls.ProbeCall) -> calls.ProbeResult:
    """Request a node's incarnation at its listener, before it is fenced; without a response return the reason."""
    try:
        reply = await asyncio.wait_for(
            asyncio.to_thread(private_client.call, call.host, call.port, "incarnation", timeout=call.timeout),
            call.timeout + 0.5,
        )
    except Exception as error:  # Any error means that the node did not send its incarnation.
        refused = isinstance(error, ConnectionRefusedError)
        return calls.ProbeResult(reason=str(error) or type(error).__name__, refused=refused)
    if reply.get("node") != call.node:
        return calls.ProbeResult(reason=f"node {reply.get('node')} responds at {call.host}:{call.port}")
    return calls.ProbeResult(incarnation=str(reply.get("incarnation", "")), reason=str(reply.get("message", "")))
