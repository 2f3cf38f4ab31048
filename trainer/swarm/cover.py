"""Repairs until exactly one peer holds each (stage, micro-batch). Pure functions of the ledgers.

Two peers hold the same micro-batch if a reply is lost after its gradient was accumulated and another peer was called.
A gradient cannot be removed from a sum, so one of the holders resets its sum and the loss is recomputed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

Ledgers = Mapping[int, Mapping[str, Collection[int]]]  # For each stage, its peers and the micro-batches that they hold


def peers_to_reset(ledgers: Ledgers) -> list[str]:
    """Return the peers that must reset their sums, so that no micro-batch is held twice: those that hold least."""
    resets = []
    for peers in ledgers.values():
        held: set[int] = set()
        # Peers that hold most come first and keep their sums; the name breaks ties deterministically.
        for peer in sorted(peers, key=lambda peer: (-len(peers[peer]), peer)):
            if held.isdisjoint(peers[peer]):
                held.update(peers[peer])
            else:
                resets.append(peer)
    return resets


def find_missing(ledgers: Ledgers, micro_batches: int) -> dict[int, tuple[int, ...]]:
    """Return the micro-batches to run again, each with the stages that lack it."""
    held = {stage: {number for numbers in peers.values() for number in numbers} for stage, peers in ledgers.items()}
    missing = {
        number: tuple(stage for stage in sorted(held) if number not in held[stage]) for number in range(micro_batches)
    }
    return {number: stages for number, stages in missing.items() if stages}


def is_exact_cover(ledgers: Ledgers, micro_batches: int) -> bool:
    """Return whether every stage holds every micro-batch exactly once."""
    return all(
        sorted(number for numbers in peers.values() for number in numbers) == list(range(micro_batches))
        for peers in ledgers.values()
    )
