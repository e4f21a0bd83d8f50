"""Report formats: pure functions of a result, which compute no privacy bounds."""
