# complete.zsh SCRIPT <LINES: types each line and a Tab into a zsh of its own that has SCRIPT among its functions, and prints
# what then stands there.
zmodload zsh/zpty
folder=$(mktemp -d)
trap 'rm -rf $folder' EXIT
cp $1 $folder/_lockstep
zpty shell zsh -f -i
# The marks are not to be found in what the terminal echoes.
zpty -w shell "fpath=($folder \$fpath); autoload -Uz compinit; compinit -u -D; unsetopt beep list_beep auto_list"
zpty -w shell 'answer() { zle complete-word; print -r -- $BUFFER >>'$folder'/answers; BUFFER=; print "<"answered">" }'
zpty -w shell 'zle -N answer; bindkey "^I" answer; print "<"ready">"'
zpty -r shell echoed '*<ready>*'
while IFS= read -r line; do
  zpty -w -n shell $line$'\t'
  zpty -r shell echoed '*<answered>*'
done
zpty -d shell
cat $folder/answers
