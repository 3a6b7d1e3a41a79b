#!/usr/bin/env bash
exec yes "too much"
