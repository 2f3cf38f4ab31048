"""Notices: what people asked to hear of, sent where they asked for it.

`topics/` says what there is to tell and to whom, `channels/` how it gets there; `sending` asks for a notice (an Effect)
and carries it out; `listening` is told of every Event.
"""
