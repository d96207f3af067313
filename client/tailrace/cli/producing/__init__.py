"""What `tailrace produce` is made of: input, form, requests, a run that can be resumed."""
