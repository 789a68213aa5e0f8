"""The front end process: text in, text out; every decision is the engine's."""
