"""SWARM parallelism: train one model with unreliable machines (Ryabinin et al., arXiv 2301.11913), exactly.

The model is partitioned into stages, and each stage has a few equal peers. A micro-batch visits any one peer of each
stage through nested calls, whose replies are the gradients. A step is a transaction: at its commit every (stage,
micro-batch) is held exactly once, whichever peers failed, so the losses equal those of one process without failures.

    transport     encrypted calls between peers, the adapter of hivemind
    messages      the messages of these calls
    worker        one peer of one stage
    coordinator   membership, data order and commits
    local_swarm   a whole swarm on this machine: `dailytrain swarm local`
"""
