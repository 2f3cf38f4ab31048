"""What pages, chats and link previews show as pictures; no script is needed for any."""
