"""`rpsp serve`: a trained agent as a small HTTP and WebSocket service.

- `sessions`: the states of all sessions, and the actions for their observations.
- `protocol`: requests and frames as bytes, within limits.
- `service`: connections, routes, limits of rates; starts and stops.
"""
