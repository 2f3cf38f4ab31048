"""The volunteer's side of the dataset swarm, and what both sides share.

    chunks, prompts, languages, checks   pure: the site uses them too; no torch, no pydantic
    backends/                            what writes: one file each, one dict
    writing                              one chunk in one style: ask, clean up, look at it, ask again
    serve                                a small model on the CPU behind the protocol that the others speak
    command                              `dailytrain rephrase join | check | calibrate`

The session, which takes and submits packets, is a job handler of the node (`trainer.node.job_handlers.rephrase`).
"""
