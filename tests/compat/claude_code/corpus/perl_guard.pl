#!/usr/bin/env perl
use strict; use warnings;
local $/; my $in = <STDIN>;
if ($in =~ /"command"\s*:\s*"[^"]*DROP\s+TABLE/i) { print STDERR "no DROP TABLE\n"; exit 2; }
exit 0;
