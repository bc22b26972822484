"""The common parts of our HTTP servers: listening and serving, certificate renewal, bounds."""
