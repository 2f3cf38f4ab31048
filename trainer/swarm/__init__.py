"""SWARM: one model trained by machines that come and go (Ryabinin et al., arXiv 2301.11913), exactly.

The model is cut into stages, each held by a few equal peers. A micro-batch travels through any one peer of each stage,
as a call within a call; what comes back up is the gradient. A step is a transaction: every (stage, micro-batch) is held
exactly once when it is committed, whoever died in between, so the losses are those of one process that never failed.

    transport     encrypted calls between peers: the only file that knows hivemind
    wire          what they say to each other
    worker        one peer of one stage; coordinator: who belongs, and when a step counts
    local         all of it on this machine, held against one process: `python -m trainer.swarm.local`
"""
