"""Published weights: releases, publications, model cards and uploads to the Hub."""
