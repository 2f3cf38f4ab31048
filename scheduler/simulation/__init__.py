"""A pool and its queue in small: the site's own matching and lease code, synthetic nodes and jobs, a virtual clock."""
