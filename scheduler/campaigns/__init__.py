"""The dataset swarm, the server's side: a corpus goes in at one end, a published dataset comes out at the other.

campaigns    their states
sources      where text is read from, from any place on          filters, quality   what is left out
producer     documents become packets, each exactly once
sittings     the job under whose lease a volunteer works         joining            how volunteers come in
handing_out, taking_in, giving_back    packets go out, come back written, or come back
reputation   who is believed                                     withdrawal         and who is not any more
collation    what was accepted becomes shards                    dataset            what is published
figures      all of it as plain data, for pages
"""
