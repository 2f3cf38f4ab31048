"""A night rehearsed on this machine: a site of its own, the track at a small scale, and the whole path.

`full_tracks` reads tracks of the production site and templates. `isolation` gives the command a folder and an
environment without the production site's database, files and accounts. `scaled_tracks` makes a track small. `node` is a
node that reports the hardware which the track asks for. `steps` is the path from the season to the record, `report`
what is printed in the end.
"""
