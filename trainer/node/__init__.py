"""The node's long-lived process: polls for jobs, verifies the site's signature, runs them in a sandbox, sends results.

The main thread has the `agent` (identity, the sponsor's signals) and starts its slots (`slot_loops`). Each loop has a
file and a thread of its own: `poll` per slot (poll, run, clean up), and per job `heartbeat` (renews the lease, receives
stop requests), `log_sender`, `metrics_sender` and `checkpoint_sender` (send what the job writes). `stop_signal` ends
them. `job_runner` takes a job from its lease to its reported outcome; `job` is what its handler (`job_handlers`) gets.
`hardware` describes the machine, `gpu_monitor` its state, `slot_cleanup` ensures that nothing remains of the last job.

Not covered: a dataset larger than the disk.
"""
