#!/bin/sh
# Runs a command without output, and prints every two seconds that it is still running: progress.sh WORDS COMMAND...
words=$1
shift
echo "$words"
line='  still running after %s s\n'
end=''
if [ -t 1 ]; then # redraw one line
    line='\r  still running after %s s'
    end='\r\033[K'
fi
"$@" &
command=$!
trap 'kill "$command" 2> /dev/null' INT TERM
(
    passed=0
    while sleep 2 && kill -0 "$command" 2> /dev/null; do
        passed=$((passed + 2))
        printf "$line" "$passed"
    done
) &
ticking=$!
wait "$command"
status=$?
kill "$ticking" 2> /dev/null
printf "$end"
exit "$status"
