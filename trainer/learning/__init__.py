"""From recorded turns to a changed policy: advantages, losses, optimiser steps."""
