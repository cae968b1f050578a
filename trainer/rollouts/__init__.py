"""Episodes of a policy: what is played, asked, answered and recorded."""
