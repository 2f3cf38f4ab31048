"""Export of a user's data as JSON, and its deletion with the account. Results stay, without the name."""
