"""Notifications: `topics/` defines their contents and audience, `channels/` their transport.

`delivery` queues and sends them through the outbox; `event_listener` handles Events.
"""
