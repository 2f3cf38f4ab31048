"""The node's long-lived process: polls for jobs, verifies the site's signature, runs them in a sandbox, sends results.

`agent` is the main thread: the node's slots and the sponsor's signals. Each loop has a file and a thread of its own:
`poll` per slot (poll, run, clean up), and per job `heartbeat` (renews the lease, receives stop requests),
`log_sender`, `metrics_sender` and `checkpoint_sender` (send what the job writes). `stop_signal` ends them. `hardware`
describes the machine, `gpu_monitor` its state, `slot_cleanup` ensures that nothing remains of the last job.

Not covered: a dataset larger than the disk.
"""
