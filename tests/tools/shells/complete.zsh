# complete.zsh SCRIPT <LINES: types each line and a Tab into a zsh of its own that has SCRIPT among its functions, and prints
# what then stands there.
zmodload zsh/zpty
folder=$(mktemp -d)
cp $1 $folder/_lockstep
cat >$folder/.zshrc <<'END'
PS1= PS2=
unsetopt beep list_beep auto_list
fpath=($ZDOTDIR $fpath)
autoload -Uz compinit
compinit -u -D
answer() {
  zle complete-word
  print -r -- $BUFFER >>$ZDOTDIR/answers
  BUFFER=
  print -n '<answered>'
}
zle -N answer
bindkey '^I' answer
# Only now does the editor read what is typed.
zle-line-init() { print -n '<ready>' }
zle -N zle-line-init
END
export ZDOTDIR=$folder
zpty shell zsh -d -i
zpty -r shell said '*<ready>*'
while IFS= read -r line; do
  zpty -w -n shell $line$'\t'
  zpty -r shell said '*<answered>*'
done
zpty -d shell
cat $folder/answers
rm -rf $folder
