import { badInput } from '../../shared/errors.ts'

const LONGEST = 255

/** Throws BAD_USER_INPUT unless `name` is a usable name. */
export const checkName = (name: string): void => {
  if (name.trim() === '') throw badInput('name', 'is empty; give it a name')
  if (!name.isWellFormed() || name.includes('\0'))
    throw badInput('name', 'is not valid text: it has an unpaired surrogate or a NUL')
  if ([...name].length > LONGEST) throw badInput('name', `is longer than ${LONGEST} characters`)
}
