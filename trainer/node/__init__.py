"""The node's long-lived process: asks for work, checks that the site signed it, runs it in a sandbox, sends what comes.

`agent` is the main thread: the node's lanes and the sponsor's signals. One loop per file, each in a thread of its own:
`poll` for each lane (asks, works, leaves nothing behind), and beside each job `heartbeat` (keeps the lease, hears
"stop"), `log`, `metrics` and `checkpoints` (send what the job writes). `stopping` holds what ends them. `hardware` says
what the machine is, `health` how it is, `reset` that nothing is left of the last job.

Not covered: a dataset that is larger than the disk.
"""
