"""`sero demo`: a tiny policy that learns on two cores."""
