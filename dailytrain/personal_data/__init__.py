"""What the site knows of a person: exported as JSON, and deleted with the account. Results stay, without the name."""
