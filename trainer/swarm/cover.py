"""What to do until each (stage, micro-batch) is held by exactly one peer. Pure: ledgers in, orders out.

Twice happens when an answer is lost after the gradient was added, and somebody else was asked. One number cannot be
taken out of a sum, so one of the holders forgets all it has, and that is computed again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

Ledgers = Mapping[int, Mapping[str, Collection[int]]]
"""For each stage, its peers and the micro-batches that they hold."""


def to_forget(ledgers: Ledgers) -> list[str]:
    """Return the peers that must forget what they hold, so that nothing is held twice: those who hold least, first."""
    found = []
    for peers in ledgers.values():
        held: set[int] = set()
        # Whoever holds most goes first and keeps it; among equals the name decides, so that every look is the same.
        for peer in sorted(peers, key=lambda peer: (-len(peers[peer]), peer)):
            if held.isdisjoint(peers[peer]):
                held.update(peers[peer])
            else:
                found.append(peer)
    return found


def missing(ledgers: Ledgers, micro_batches: int) -> dict[int, tuple[int, ...]]:
    """Return which micro-batches must travel again, each with the stages that lack it."""
    held = {stage: {number for numbers in peers.values() for number in numbers} for stage, peers in ledgers.items()}
    lacking = {
        number: tuple(stage for stage in sorted(held) if number not in held[stage]) for number in range(micro_batches)
    }
    return {number: stages for number, stages in lacking.items() if stages}


def exact(ledgers: Ledgers, micro_batches: int) -> bool:
    """Return whether every stage holds every micro-batch, and each once."""
    return all(
        sorted(number for numbers in peers.values() for number in numbers) == list(range(micro_batches))
        for peers in ledgers.values()
    )
