# complete.bash SCRIPT <LINES: prints each line as bash completes its last word with SCRIPT; unchanged where nothing or more
# than one thing fits.
source "$1"
while IFS= read -r line; do
  # Readline cuts words at '=' too, which is then a word of its own.
  read -ra COMP_WORDS <<<"${line//=/ = }"
  [[ $line == *' ' ]] && COMP_WORDS+=('')
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  COMPREPLY=()
  _lockstep
  word=${COMP_WORDS[COMP_CWORD]}
  [[ $word == = ]] && word=
  [[ ${#COMPREPLY[@]} -eq 1 ]] && line=${line%"$word"}${COMPREPLY[0]}
  printf '%s\n' "$line"
done
