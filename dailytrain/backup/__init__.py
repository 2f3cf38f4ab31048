"""Backups of a site: its database, the files that the database names, and its keys.

    DIR/manifest.json       time, database engine, rows of each table; written last, so a backup with it is complete
    DIR/database.dump       of pg_dump, or a copy of the SQLite file
    DIR/blobs/ab/abcd...    each file by its SHA-256; a later backup into the same folder adds the new ones only
    DIR/keys/               the keys that sign sessions and job specs

Not in it: incomplete uploads, mirrors of repositories, and sources of campaigns.
"""
