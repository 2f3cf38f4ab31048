"""`dailytrain try`: an idea against the baseline at home, on the small track's terms, before anybody else sees it."""
