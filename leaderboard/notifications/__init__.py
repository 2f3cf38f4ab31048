"""Notifications: `topics` defines their contents and audience, `channels/` their transport, `delivery` sends them."""
