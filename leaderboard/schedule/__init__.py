"""What leaves when: the nightly and the monthly train, the ladder, hours, the calendar."""
