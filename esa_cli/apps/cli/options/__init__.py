"""Options that several commands share, and how help shows them."""
