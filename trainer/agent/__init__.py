"""The node's long-lived process: asks for work, checks that the site signed it, runs it in a sandbox, sends what comes.

One loop per file, each in a thread of its own but the first: `poll` (asks, one job at a time), `heartbeat` (keeps the
lease, hears "stop"), `log`, `metrics` and `checkpoints` (send what the job writes). `stopping` holds what ends them.

Not covered: two jobs at once on one machine; a dataset that is larger than the disk.
"""
