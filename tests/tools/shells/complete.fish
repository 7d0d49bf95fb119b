# complete.fish SCRIPT <LINES: prints each line as fish completes its last word with SCRIPT; unchanged where nothing or more
# than one thing fits.
source $argv[1]
while read line
    set -l found (complete -C"$line" | string split -f1 \t)
    if test (count $found) -eq 1
        set line (string replace -r '[^ ]*$' '' -- $line)$found
    end
    printf '%s\n' $line
end
