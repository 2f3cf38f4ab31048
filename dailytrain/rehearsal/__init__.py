"""Rehearses a night on this machine: with a separate site, the track at a small scale, and all steps.

`full_tracks` reads tracks of the production site and templates. `isolation` gives the command a folder and an
environment without the production site's database, files and accounts. `scaled_tracks` makes a track small. `node` is a
node that reports the hardware which the track asks for. `steps` goes from the season to the record, and `report`
prints the result.
"""
