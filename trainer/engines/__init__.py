"""Other training engines that can run our objectives, one package each."""
