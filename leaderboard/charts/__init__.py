"""Charts and images for pages, chats and link previews, drawn without scripts."""
