"""`kdc rehearse`: runs a script shortened, twice as it is and once killed and restarted, and compares the backups.

runs        starts the processes of a run, one after the other
comparison  what differs between the backups of two runs, by their manifests
causes      why two runs differ, and what helps
costs       what backups and restarts cost in these runs
rehearse    which runs there are, what they show, and the exit code
report      the result for people
"""
