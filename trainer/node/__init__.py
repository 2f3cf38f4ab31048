"""The node's long-lived process: polls for jobs, verifies the site's signature, runs them in a sandbox, sends results.

The main thread has the `agent` (identity, the sponsor's signals) and starts its slots (`slot_loops`: poll, run, clean
up). Each job has threads that renew its lease, receive stop requests and send what it writes (`senders`,
`checkpoint_sender`). `stop_signal` ends them. `job_runner` takes a job from its lease to its outcome;
`job` is what its handler (`job_handlers`) gets.
`hardware` describes the machine, `gpu_monitor` its state, `slot_cleanup` ensures that nothing remains of the last job.

Not covered: a dataset larger than the disk.
"""
