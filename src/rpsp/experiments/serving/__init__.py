"""`rpsp serve`: a trained agent as a small HTTP and WebSocket service.

- `sessions`: the states of all sessions, and one compiled call for all that ask at the same time.
- `protocol`: requests and frames as bytes, within limits.
- `service`: connections, routes, limits of rates; starts and stops.
"""
